"""`evoplane bench train`: are the losses right, and how fast is a step beside TRL's?"""

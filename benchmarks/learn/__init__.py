"""`evoplane bench learn`: does an untouched agent get better from its own traffic, and by what?"""

"""`evoplane bench swap`: weight updates under traffic, and whether every token's recorded version is true."""

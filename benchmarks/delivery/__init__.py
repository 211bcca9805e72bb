"""What a delivery costs users: how fast a bad version is gone, and how many of them meet it before it is found out."""

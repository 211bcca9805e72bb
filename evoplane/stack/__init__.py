"""The processes of one machine: started together, watched, stopped without leaving anything behind."""

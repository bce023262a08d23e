"""The share of machine time that becomes finished work while a killer kills the program."""

"""Tunnels end in each way while a program uploads: does its process survive?"""

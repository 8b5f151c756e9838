"""pytest plugin"""

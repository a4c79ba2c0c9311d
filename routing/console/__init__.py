"""The console: the pages of our own beside Django's admin, in its look and behind its log-in.

Pages show what the services and the live router say and call the services for every change. Each works as a
whole page without JavaScript; asked by htmx, the same address answers with the part that goes into a dialog
or in the place of the last reading.
"""

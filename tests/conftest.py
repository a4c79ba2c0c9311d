"""What every test shares."""

from hypothesis import settings

# The machine is shared, so how long one example took says nothing about the code.
settings.register_profile("anvil", deadline=None)
settings.load_profile("anvil")

"""Real OpenClaw gateways for tests: install one, script its model, talk to it, see what it left."""

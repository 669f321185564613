PYTHON ?= python3

.PHONY: run test fast explore check bench chaos gpu docs site downstream release

run:
	@$(PYTHON) scripts/dev.py run $(ARGS)

test:
	@$(PYTHON) scripts/dev.py test $(ARGS)

fast:
	@$(PYTHON) scripts/dev.py fast $(ARGS)

explore:
	@$(PYTHON) scripts/dev.py explore $(ARGS)

check:
	@$(PYTHON) scripts/dev.py check

bench:
	@$(PYTHON) scripts/dev.py bench $(ARGS)

chaos:
	@$(PYTHON) scripts/dev.py chaos $(ARGS)

gpu:
	@$(PYTHON) scripts/dev.py gpu $(ARGS)

docs:
	@$(PYTHON) scripts/dev.py docs

site:
	@$(PYTHON) scripts/dev.py site $(ARGS)

downstream:
	@$(PYTHON) scripts/dev.py downstream $(ARGS)

release:
	@$(PYTHON) scripts/dev.py release $(VERSION) $(ARGS)

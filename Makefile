PYTHON ?= python3

.PHONY: run test check bench docs

run:
	@$(PYTHON) scripts/dev.py run $(ARGS)

test:
	@$(PYTHON) scripts/dev.py test $(ARGS)

check:
	@$(PYTHON) scripts/dev.py check

bench:
	@$(PYTHON) scripts/dev.py bench $(ARGS)

docs:
	@$(PYTHON) scripts/dev.py docs

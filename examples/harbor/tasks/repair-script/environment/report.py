import sys

for name in sys.argv[1:]:
    with open(name) as file:
        words = sum(len(line.rstrip("\n").split(" ")) for line in file)
    sys.stdout.write(f"{words} {name}\n")

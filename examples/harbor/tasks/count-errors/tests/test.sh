#!/bin/bash
# 1 if the number is right.
if [ "$(tr -d '[:space:]' < answer.txt)" = 7 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt

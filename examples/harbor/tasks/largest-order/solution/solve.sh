#!/bin/bash
tail -n +2 orders.csv | sort -t, -k3 -n | tail -n 1 | cut -d, -f1 > answer.txt

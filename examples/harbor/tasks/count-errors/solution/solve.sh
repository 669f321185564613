#!/bin/bash
grep -c " ERROR " service.log > answer.txt

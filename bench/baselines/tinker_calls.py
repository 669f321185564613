"""The client of ``bench.tinker`` that calls ``forward_backward``, in an interpreter that has the client of Tinker and nothing of ours.

    python tinker_calls.py DATA.npz

``tokens`` int64 [sequences, length] and float32 ``logprobs`` and ``advantages`` of their targets. Each line of standard input is a
number of calls; a line is printed when they are done, with the CPU seconds that this process took for them.
"""

import sys
import time

import numpy as np
import tinker
from tinker import types


def main() -> None:
    """Run the orders of standard input until it ends."""
    given = np.load(sys.argv[1])
    training = (
        tinker.ServiceClient()
        .create_lora_training_client(base_model="astraflow/tiny", rank=0, seed=0)
        .result()
    )
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1].tolist()),
            loss_fn_inputs={
                "target_tokens": tokens[1:],
                "logprobs": logprobs,
                "advantages": advantages,
            },
        )
        for tokens, logprobs, advantages in zip(
            given["tokens"], given["logprobs"], given["advantages"], strict=True
        )
    ]
    for line in sys.stdin:
        began = time.process_time()
        for _ in range(int(line)):
            told = training.forward_backward(data, "ppo").result()
            assert len(told.loss_fn_outputs) == len(data)
        print(time.process_time() - began, flush=True)


if __name__ == "__main__":
    main()

"""llama.cpp's server loop on one thread: token ids as a JSON line on stdin; when it has the first
token of the answer, a line on stdout with the number of tokens that were cached.

Says `ready` once it has the model. Run as a program: GGUF file, tokens of context. Needs the package xllamacpp.
"""

import json
import sys

import xllamacpp


def main() -> None:
    """Answer line by line until stdin ends."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    parameters.n_ctx = int(sys.argv[2])
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    print('ready', flush=True)
    for line in sys.stdin:
        request = {'prompt': json.loads(line), 'n_predict': 1, 'temperature': 0.0, 'cache_prompt': True}
        answer = server.handle_completions(request)
        print((answer if isinstance(answer, dict) else json.loads(answer))['timings']['cache_n'], flush=True)


if __name__ == '__main__':
    main()

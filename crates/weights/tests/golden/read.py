"""Prints what the `gguf` package finds in a GGUF file, as JSON: the metadata, and of every tensor its type, torch shape and values.

    python read.py FILE
"""

import json
import sys

import gguf

reader = gguf.GGUFReader(sys.argv[1])
metadata = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
tensors = [
    {
        "name": tensor.name,
        "kind": tensor.tensor_type.name,
        "shape": list(reversed(tensor.shape.tolist())),
        "values": gguf.dequantize(tensor.data, tensor.tensor_type).flatten().tolist(),
    }
    for tensor in reader.tensors
]
json.dump({"metadata": metadata, "tensors": tensors}, sys.stdout)

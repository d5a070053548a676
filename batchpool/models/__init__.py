"""Models that serve a file or a folder without code, each also an example of how to write one.

    batchpool serve --model onnx:fraud.onnx
    batchpool serve --model image_classifier:resnet50.safetensors --option labels=labels.txt

    onnx                   a file of ONNX, run by ONNX Runtime
    sentence_transformer   a folder of Sentence Transformers: text to vector
    image_classifier       weights of a classifier of torchvision: picture to labels
    text_classifier        a folder of a sequence classifier of transformers: text to label
    causal_lm              a folder of a decoder of transformers: prompt to tokens, by streams
    exported               a program of torch.export

The arguments of a class's `__init__` are its options. Each class reads what tells its tensors in
`__init__` and leaves the heavy libraries to `load`, as far as that goes. Nothing is fetched from a
network, and nothing that may hold code (pickles, remote code) is loaded without `trust = true`.
"""

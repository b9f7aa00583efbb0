"""FILES OF OTHERS -> MODELS AND QUESTIONS: ONNX networks in and out, VNN-LIB properties, and what is decided about them."""

from autodual.interchange.onnx_reading import load_onnx as load_onnx

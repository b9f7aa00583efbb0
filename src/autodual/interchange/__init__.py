"""FILES OF OTHERS -> MODELS AND QUESTIONS: ONNX networks in and out, VNN-LIB properties, and what is decided about them."""

from autodual.interchange.onnx_reading import load_onnx as load_onnx
from autodual.interchange.onnx_writing import save_onnx as save_onnx
from autodual.interchange.vnnlib import VnnLibProperty as VnnLibProperty
from autodual.interchange.vnnlib import load_vnnlib as load_vnnlib

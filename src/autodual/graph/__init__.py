"""MODEL -> GRAPH: capture any nn.Module as a frozen network with live parameters."""

from autodual.graph.digest import Fingerprint as Fingerprint
from autodual.graph.network import Network as Network
from autodual.graph.network import Node as Node
from autodual.graph.record import capture_graph as capture_graph
from autodual.graph.record import check_current as check_current
from autodual.graph.record import check_surroundings as check_surroundings
from autodual.graph.registry import Call as Call
from autodual.graph.registry import Operand as Operand
from autodual.graph.registry import Registry as Registry
from autodual.graph.tracer import depends as depends
from autodual.graph.twins import private_copy as private_copy

"""SEVERAL NETWORKS: the paper's cascade, and two combinations whose certificate is sound."""

from autodual.cascades.base import Combination as Combination
from autodual.cascades.base import load_combination as load_combination
from autodual.cascades.paper import Cascade as Cascade
from autodual.cascades.records import Answers as Answers
from autodual.cascades.records import CascadeAttack as CascadeAttack
from autodual.cascades.records import CascadeCertificate as CascadeCertificate
from autodual.cascades.sound import RoutedCascade as RoutedCascade
from autodual.cascades.sound import SumEnsemble as SumEnsemble
from autodual.cascades.sound import SummedScores as SummedScores

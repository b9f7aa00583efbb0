"""BOUNDS -> PROOF: certificates, certified radii, the robust loss, and attacks."""

from autodual.certify.attack import Attack as Attack
from autodual.certify.attack import attack as attack
from autodual.certify.cascade import Cascade as Cascade
from autodual.certify.cascade import RoutedCascade as RoutedCascade
from autodual.certify.cascade import SumEnsemble as SumEnsemble
from autodual.certify.cascade import load_combination as load_combination
from autodual.certify.cascade_base import Combination as Combination
from autodual.certify.cascade_records import Answers as Answers
from autodual.certify.cascade_records import CascadeAttack as CascadeAttack
from autodual.certify.cascade_records import CascadeCertificate as CascadeCertificate
from autodual.certify.certificate import Certificate as Certificate
from autodual.certify.certificate import HighProbabilityCertificate as HighProbabilityCertificate
from autodual.certify.certificate import Verdict as Verdict
from autodual.certify.certify import certify as certify
from autodual.certify.loss import RobustCrossEntropy as RobustCrossEntropy
from autodual.certify.radius import certified_radius as certified_radius

"""BOUNDS -> PROOF: certificates, certified radii, the robust loss, and attacks."""

from autodual.certify.attack import Attack as Attack
from autodual.certify.attack import attack as attack
from autodual.certify.certificate import Certificate as Certificate
from autodual.certify.certificate import HighProbabilityCertificate as HighProbabilityCertificate
from autodual.certify.certificate import Verdict as Verdict
from autodual.certify.certify import certify as certify
from autodual.certify.loss import RobustCrossEntropy as RobustCrossEntropy
from autodual.certify.radius import certified_radius as certified_radius

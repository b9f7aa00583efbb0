"""BOUNDS -> PROOF: certificates, certified radii, the robust loss, and attacks."""

from autodual.certificates.attacks import Attack as Attack
from autodual.certificates.attacks import attack as attack
from autodual.certificates.certificate import Certificate as Certificate
from autodual.certificates.certificate import HighProbabilityCertificate as HighProbabilityCertificate
from autodual.certificates.certificate import Verdict as Verdict
from autodual.certificates.loss import RobustCrossEntropy as RobustCrossEntropy
from autodual.certificates.proof import certified_radius as certified_radius
from autodual.certificates.proof import certify as certify

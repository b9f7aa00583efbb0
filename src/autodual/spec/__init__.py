"""WHAT MUST HOLD: specifications of a network's output, and the questions that they put to a batch."""

from autodual.spec.properties import AllOf as AllOf
from autodual.spec.properties import AnyOf as AnyOf
from autodual.spec.properties import Between as Between
from autodual.spec.properties import Positive as Positive
from autodual.spec.properties import TopK as TopK
from autodual.spec.question import AtLeast as AtLeast
from autodual.spec.question import Label as Label
from autodual.spec.question import Question as Question
from autodual.spec.question import Spec as Spec
from autodual.spec.question import Specification as Specification
from autodual.spec.question import check_classifier as check_classifier
from autodual.spec.question import check_label_range as check_label_range
from autodual.spec.question import check_labels as check_labels
from autodual.spec.question import margins as margins
from autodual.spec.question import outputs as outputs
from autodual.spec.question import plain_labels as plain_labels

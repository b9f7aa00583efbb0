"""A data set certified, attacked and measured, by one process or several."""

from autodual.evaluation.data_set import DataCertificate as DataCertificate
from autodual.evaluation.data_set import certify_data as certify_data

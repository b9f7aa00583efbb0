"""Images to train on: known data sets, the user's own, fetching, checking and augmentation."""

from autodual.train.data.augment import augment as augment
from autodual.train.data.factory import in_words as in_words
from autodual.train.data.factory import is_factory as is_factory
from autodual.train.data.factory import named_function as named_function
from autodual.train.data.fetch import fetch as fetch
from autodual.train.data.images import ImageData as ImageData
from autodual.train.data.images import check_parts as check_parts
from autodual.train.data.load import form_of as form_of
from autodual.train.data.load import load as load
from autodual.train.data.places import data_folder as data_folder
from autodual.train.data.statistics import Statistics as Statistics
from autodual.train.data.statistics import any_mean_std as any_mean_std
from autodual.train.data.statistics import mean_std as mean_std
from autodual.train.data.store import Progress as Progress
from autodual.train.data.verify import CatalogueEntry as CatalogueEntry
from autodual.train.data.verify import FileCheck as FileCheck
from autodual.train.data.verify import FileState as FileState
from autodual.train.data.verify import catalogue as catalogue
from autodual.train.data.verify import verify as verify

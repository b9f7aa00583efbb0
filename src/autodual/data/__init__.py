"""Images and tables to train on: known data sets, the user's own, fetching, checking and augmentation."""

from autodual.data.downloads import CatalogueEntry as CatalogueEntry
from autodual.data.downloads import FileCheck as FileCheck
from autodual.data.downloads import FileState as FileState
from autodual.data.downloads import Progress as Progress
from autodual.data.downloads import catalogue as catalogue
from autodual.data.downloads import fetch as fetch
from autodual.data.downloads import verify as verify
from autodual.data.examples import ArrayData as ArrayData
from autodual.data.examples import Examples as Examples
from autodual.data.images import ImageData as ImageData
from autodual.data.images import augment as augment
from autodual.data.images import check_parts as check_parts
from autodual.data.known import Statistics as Statistics
from autodual.data.known import any_mean_std as any_mean_std
from autodual.data.known import data_folder as data_folder
from autodual.data.known import mean_std as mean_std
from autodual.data.loading import form_of as form_of
from autodual.data.loading import load as load
from autodual.data.tables import TableOptions as TableOptions
from autodual.data.tables import load_table as load_table
from autodual.data.user_code import error_in_words as error_in_words
from autodual.data.user_code import is_factory as is_factory
from autodual.data.user_code import named_function as named_function

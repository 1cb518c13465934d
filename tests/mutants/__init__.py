"""The mutation job: it takes away one defence at a time, and a test that is named beside it must turn red.

mutant            what a mutant is; guest, boxes, hosts, access, requests, upkeep, stores: the tables of them
tree              a copy of the repository that a mutant is applied to
verdict           killed, survived, broken: decided from what pytest tells (reports)
keeper            runs one pytest, and ends whatever the missing defence has let it leave behind
"""

from tests.mutants.access import ACCESS
from tests.mutants.boxes import BACKENDS
from tests.mutants.guest import GUEST
from tests.mutants.hosts import HOSTS
from tests.mutants.mutant import Mutant
from tests.mutants.requests import REQUESTS
from tests.mutants.stores import STORES
from tests.mutants.upkeep import UPKEEP

MUTANTS: tuple[Mutant, ...] = (*GUEST, *BACKENDS, *HOSTS, *ACCESS, *REQUESTS, *UPKEEP, *STORES)

"""The mutation job: it takes away one defence at a time, and a test that is named beside it must turn red.

mutant            what a mutant is; guest, boxes, hosts: the tables of them
tree              a copy of the repository that a mutant is applied to
verdict           killed, survived, broken: decided from what pytest tells (reports)
keeper            runs one pytest, and ends whatever the missing defence has let it leave behind
"""

from tests.mutants.boxes import BACKENDS
from tests.mutants.guest import GUEST
from tests.mutants.hosts import HOSTS
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (*GUEST, *BACKENDS, *HOSTS)

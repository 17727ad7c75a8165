"""The workers of a topology and the tasks of each worker, maintained by one program, usually the driver.

Source: Storm's `Nimbus` (`mkAssignments`), with the registration of its supervisors.
"""

from tuplewire.membership.member_status import MembershipStatus, MemberStatus, Phase
from tuplewire.membership.membership import Membership, MembershipKeywords, Workers

__all__ = ["MemberStatus", "Membership", "MembershipKeywords", "MembershipStatus", "Phase", "Workers"]

"""Which workers there are, and which tasks each holds: kept up by one program, the driver.

Source: Storm's `Nimbus` (`mkAssignments`), with the registration of its supervisors.
"""

from tuplewire.membership.member_status import MembershipStatus, MemberStatus, Phase
from tuplewire.membership.membership import Membership, MembershipKeywords, Workers

__all__ = ["MemberStatus", "Membership", "MembershipKeywords", "MembershipStatus", "Phase", "Workers"]

"""Versions of Redis and Valkey whose Lua engine has flaws that are known and mended. Knows no others.

The first release of each series that has every fix of these advisories of redis/redis, and their counterparts in
Valkey's release notes:

- CVE-2022-24834, CVE-2024-31449 (GHSA-whxg-wx83-85p5), CVE-2024-46981 (GHSA-39h2-x6c4-6w4c)
- October 2025: CVE-2025-49844 (GHSA-4789-qfc9-5f9q), CVE-2025-46817 (GHSA-m8fj-85cg-7vhp),
  CVE-2025-46818 (GHSA-qrv7-wcrx-q5jp), CVE-2025-46819 (GHSA-4c68-q8q8-3g4f)
- May 2026: CVE-2026-23631 (GHSA-8ghh-qpmp-7826); Redis 6.2 does not have that flaw (redis/redis#15231)

A series below the newest one here that is not here got no fix of all of them: Redis 7.0 ended before the fixes of 2025,
and the advisory of May 2026 names no release of 8.0.
"""

from collections.abc import Mapping
from typing import Any

REDIS = {(6, 2): 20, (7, 2): 14, (7, 4): 9, (8, 2): 6, (8, 4): 3, (8, 6): 3}
VALKEY = {(7, 2): 13, (8, 0): 8, (8, 1): 7, (9, 0): 4}
#: Fields of INFO by which other engines with Redis' protocol, and versions of their own, are told.
OTHERS = ("dragonfly_version", "kvrocks_version", "garnet_version")


def known_flaw(about: Mapping[str, Any]) -> str:
    """Return what to do about the version that an INFO tells; nothing where it is sound, or unknown."""
    if any(field in about for field in OTHERS):
        return ""
    valkey = about.get("valkey_version")
    fixed, told = (VALKEY, valkey) if valkey else (REDIS, about.get("redis_version"))
    try:
        major, minor, patch = (int(part) for part in str(told).split(".")[:3])
    except ValueError:
        return ""
    series, name = (major, minor), "Valkey" if valkey else "Redis"
    if not valkey and minor % 2:  # no series of Redis itself: ElastiCache's 7.1, KeyDB's 6.3
        return ""
    if series > max(fixed) or patch >= fixed.get(series, patch + 1):
        return ""
    if series in fixed:
        return f"Update to {name} {major}.{minor}.{fixed[series]} or later."
    newest = max(fixed)
    return f"{name} {major}.{minor} gets no fix: update to {newest[0]}.{newest[1]}.{fixed[newest]} or later."

"""Sends the messages of an alert by mail and to a webhook, signed as in https://www.standardwebhooks.com.

Note [Messages arrive at least once]
A message has one id for all its attempts, `<primary key>.opened` or `….recovered`, in `webhook-id` or Message-ID. It is
sent, then recorded as sent; if the worker dies in between, it is sent again. If the database fails to record it, only
the recording is retried, and the job succeeds, because a failed job would send again.
"""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from email.utils import parseaddr
from typing import Any

from django.core.mail import EmailMessage
from django.db import DatabaseError, connections, transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from ... import conf, ledger
from ...calls.compat import get_mail_connection
from ...conf.alerts import AlertSettings, decode_secret
from ...models import Alert
from ...recurrence.point import utcnow
from ...text import format_iso
from ..outgoing import DeliveryFailed, post
from ..snapshot import Snapshot
from .states import find_jobs

logger = logging.getLogger("django_delayq.worker")

#: Seconds for a webhook's whole request, and for each response of a mail server.
TIMEOUT_SECONDS = 10.0
#: Seconds between attempts to record a message as sent. The whole job has `states.TIMEOUT_SECONDS`.
NOTE_PAUSES_SECONDS = (0.1, 1.0, 5.0)
#: Maximum age and number of alerts that `delayq_status --alert` delivers; jobs of older ones have no attempts left.
MOST_AGE, MOST_PENDING = timedelta(days=1), 100


def deliver(key: str, what: str, channel: str) -> bool:
    """Send a message; return False if it was sent before or is not to be. See Note [Messages arrive at least once].

    Raises DeliveryFailed or OSError if the webhook or the mail server cannot be reached or rejects the message.
    """
    alerts, rows = conf.get_config().alerts, Alert.objects.using(ledger.get_database()).filter(pk=key)
    row, name = rows.first(), f"{what} {channel}"
    if alerts is None or channel not in alerts.channels or row is None or name in row.sent:
        return False
    if (row.reported_at if what == Alert.OPENED else row.recovered_at) is None:
        return False
    CHANNELS[channel](row, what, alerts)
    for pause in (*NOTE_PAUSES_SECONDS, 0.0):
        try:
            _note_sent(rows, name)
            return True
        except DatabaseError:
            connections[rows.db].close_if_unusable_or_obsolete()
            time.sleep(pause)
    logger.error("The message %s of the alert %s was sent, but could not be recorded as sent.", name, key)
    return True


def _note_sent(rows: QuerySet[Alert], name: str) -> None:
    with transaction.atomic(using=rows.db):
        locked = rows.select_for_update().first()
        if locked is not None:
            locked.sent[name] = format_iso(utcnow())
            locked.save(update_fields=["sent"])


def deliver_pending(snapshot: Snapshot) -> list[str]:
    """Send pending messages if no live worker serves the queue of their jobs; return a line for each failure."""
    alerts = conf.get_config().alerts
    task = None if alerts is None else find_jobs(alerts)
    workers = snapshot.redis.workers if snapshot.redis is not None else ()
    if alerts is None or task is None or any(each.live and task.queue_name in each.queues for each in workers):
        return []
    since, failures = utcnow() - MOST_AGE, list[str]()
    young = Q(reported_at__gte=since) | Q(recovered_at__gte=since)
    for row in Alert.objects.using(ledger.get_database()).filter(young).order_by("since")[:MOST_PENDING]:
        for what in (Alert.OPENED, Alert.RECOVERED):
            for channel in alerts.channels:
                try:
                    deliver(str(row.pk), what, channel)
                except (DeliveryFailed, OSError) as error:
                    failures.append(f"{row} {what}, {channel}: {error}")
    return failures


def _send_mail(row: Alert, what: str, alerts: AlertSettings) -> None:
    sender, prefix = conf.get_mail_from()
    to = conf.list_admins() if alerts.mail is True else list(alerts.mail or ())
    word = _("Alert") if what == Alert.OPENED else _("Recovered")
    lines = [row.text, "", _("Since %(time)s.") % {"time": f"{row.since:%Y-%m-%d %H:%M:%S} UTC"}]
    if what == Alert.RECOVERED:
        lines = [_("Recovered, since %(time)s:") % {"time": f"{row.gone_at:%Y-%m-%d %H:%M:%S} UTC"}, "", *lines]
    domain = parseaddr(sender)[1].rpartition("@")[2] or "localhost"
    headers = {"Message-ID": f"<{row.pk}.{what}@{domain}>", "Auto-Submitted": "auto-generated"}
    subject = " ".join(f"{prefix}{word}: {row}".split())
    connection = get_mail_connection()
    if getattr(connection, "timeout", 0) is None:  # without EMAIL_TIMEOUT a hanging mail server would block a slot
        connection.timeout = TIMEOUT_SECONDS
    connection.send_messages([EmailMessage(subject, "\n".join(lines) + "\n", sender, to, headers=headers)])


def _send_webhook(row: Alert, what: str, alerts: AlertSettings) -> None:
    body = json.dumps(_build_body(row, what)).encode()
    headers = sign(f"{row.pk}.{what}", body, alerts.secret, int(time.time()))
    headers |= {"content-type": "application/json", "user-agent": "django-delayq"}
    post(alerts.webhook, body, headers, hosts=alerts.hosts, timeout_seconds=TIMEOUT_SECONDS)


CHANNELS: dict[str, Callable[[Alert, str, AlertSettings], None]] = {"mail": _send_mail, "webhook": _send_webhook}


def _build_body(row: Alert, what: str) -> dict[str, Any]:
    """Return the body of a webhook; it is the same for each attempt."""
    over = what == Alert.RECOVERED
    return {
        "type": f"alert.{what}",
        "timestamp": _format_iso(row.recovered_at if over else row.reported_at),
        "data": {
            "alert": str(row.pk),
            "kind": row.kind,
            "name": row.name,
            "queue": row.queue or None,
            "text": row.text,
            "since": _format_iso(row.since),
            "until": _format_iso(row.gone_at) if over else None,
            "prefix": conf.get_config().prefix,
        },
    }


def sign(name: str, body: bytes, secret: str, now: int) -> dict[str, str]:
    """Return the headers by which a receiver verifies the sender; `now` is in seconds since 1970."""
    signed = f"{name}.{now}.".encode() + body
    digest = hmac.new(decode_secret(secret), signed, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": name, "webhook-timestamp": str(now), "webhook-signature": signature}


def _format_iso(instant: Any) -> str | None:
    return None if instant is None else format_iso(instant)

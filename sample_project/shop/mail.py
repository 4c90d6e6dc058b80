"""Sends several mails through one connection, on every supported version of Django."""

from collections.abc import Sequence

from django.core import mail


def send_all(messages: Sequence[mail.EmailMessage]) -> None:
    """Send mails in order."""
    mailer = mail.mailers.default if hasattr(mail, "mailers") else mail.get_connection()
    mailer.send_messages(messages)

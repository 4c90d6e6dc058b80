"""For ASGI servers. They need DELAYQ_REDIS_URL: only `manage.py` starts an embedded server."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sample.settings")
application = get_asgi_application()

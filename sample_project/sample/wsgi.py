"""For WSGI servers. They need DELAYQ_REDIS_URL: only `manage.py` starts an embedded server."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sample.settings")
application = get_wsgi_application()

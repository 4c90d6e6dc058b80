"""The strictest policy that stock Django admin works under: whatever of ours needs more is seen as an error."""

POLICY = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"


def strict(get_response):
    """Set the policy on each page, as a project's own middleware would."""

    def middleware(request):
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return middleware

"""What a process of multiprocessing does."""


def place_order():
    """Set Django up, as a fresh interpreter must, and enqueue."""
    import django

    django.setup()
    from shop.tasks import charge

    charge.enqueue(3)

"""Values: frozen, picklable, without torch. Requests, parameters, configurations, errors."""

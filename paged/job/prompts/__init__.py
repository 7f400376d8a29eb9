"""From a row to what it asks: prompts, templates, chats, batch calls, engine requests."""

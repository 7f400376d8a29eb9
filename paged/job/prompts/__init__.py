"""Requests of rows: prompts, templates, chats, OpenAI requests."""

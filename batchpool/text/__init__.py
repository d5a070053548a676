"""The text of generators: prompts to tokens, tokens to text, chats to prompts, stop strings.

In reading order: chat_template.py (messages to the text of a prompt), tokenizer.py (text to
tokens), incremental_decoder.py (tokens to text as they come), stop_strings.py (where the text
ends), generated_text.py (the latter two together), text_model.py (all of one model). The libraries
tokenizers and jinja2 are the extra `text`; nothing here knows HTTP.
"""

"""The product against running brokers: files they write and rebuild, and what ours are to them."""

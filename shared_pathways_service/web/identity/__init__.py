"""The users of a shared page, by the signed assertions of an authenticating proxy.

- `assertions`: verifies assertions, with PyJWT. Pure but for its clock.
- `signing_keys`: the issuer's keys, read again for an unknown one.
- `key_reading`: reads the keys from a URL or a file.
- `identity_guard`: lets in requests with an assertion.
"""

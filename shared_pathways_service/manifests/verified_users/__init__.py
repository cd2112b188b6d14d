"""Users whom the API server has verified, and what only they may have.

- `account_parts`: tokens of service accounts in pods, by which a proxy proves its user
- `user_policies`: admission policies by which the API server vouches for a user
- `program_parts`: the volume with compiled programs, a folder for each user
- `program_policy`: the admission policy that keeps these folders apart
- `admission_parts`: the form of such policies
"""

"""Checkpoints on disk or in an object store.

- `checkpoints`: saves and restores a state and its progress
- `files`, `file_store`: directories of checkpoints, local or in an object store
- `arrays`, `reading`: arrays of a checkpoint
- `manifest`, `item`: checksums of files, and data other than arrays
- `retention`: decides which checkpoints are kept
- `lock`: lets only one program save
"""

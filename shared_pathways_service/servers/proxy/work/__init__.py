"""Work that settles once: operations, values, and an executor per placement of a slice."""

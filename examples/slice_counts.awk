# Prints each change of the number of good slices, from the log of an elastic training:
#
#     kubectl logs --follow JOB | awk -f slice_counts.awk
#
# Lines may bear a prefix, as logs of pods do. Any awk will do: mawk, gawk, busybox.

match($0, /step=[0-9]+ +elastic_manager\.good_slice_count=[0-9]+/) {
  found = substr($0, RSTART, RLENGTH)
  count = step = found
  sub(/.*=/, "", count)
  sub(/^step=/, "", step)
  sub(/ .*/, "", step)
  if (known && count != slices) {
    printf "Step: %s, Old Slice Count: %s, New Slice Count: %s\n", step, slices, count
    fflush()
  }
  slices = count
  known = 1
}

// Selectors that obey the dashboard's variables, and the shapes of query that come again and again.
{
  local this = self,
  local scope = 'cluster=~"$cluster", namespace=~"$namespace", job=~"$job", instance=~"$instance"',

  // A metric as the variables choose it, with further matchers.
  of(metric, matchers=''):: '%s{%s%s}' % [metric, scope, if matchers == '' then '' else ', ' + matchers],

  // Processes that can be scraped. Health checks are scraped under the same job, by another path.
  up:: this.of('up', 'metrics_path!="/metrics/slis"'),

  // The same for one driver or all of them.
  ofDriver(metric, matchers='')::
    this.of(metric, 'driver=~"$driver"' + (if matchers == '' then '' else ', ' + matchers)),

  // Per second; a counter that is not there yet counts nothing.
  rate(selector, by=''):: 'sum%s (rate(%s[$__rate_interval]))' % [this.by(by), selector],
  rateOrZero(selector):: this.rate(selector) + ' or vector(0)',

  // A series called `none` where there are no others: nothing happened, which is not the same as no data.
  orNone(query, label):: '%s or on() label_replace(vector(0), "%s", "none", "", "")' % [query, label],

  // How many in the time that is shown.
  increase(selector, by=''):: 'sum%s (increase(%s[$__range]))' % [this.by(by), selector],

  // A quantile of a histogram; `selector` takes the name of its buckets.
  quantile(quantile, bucket, by=''):: 'histogram_quantile(%s, sum by (%s) (rate(%s[$__rate_interval])))' % [
    quantile,
    std.join(', ', ['le'] + if by == '' then [] else [by]),
    bucket,
  ],

  // The mean of a histogram.
  mean(sum, count, by=''):: '%s / %s' % [this.rate(sum, by), this.rate(count, by)],

  // A gauge that only the leader shows: the largest, so that a hand-over does not add up two of them.
  leader(selector, by=''):: 'max%s (%s)' % [this.by(by), selector],

  by(labels):: if labels == '' then '' else ' by (%s)' % labels,
}

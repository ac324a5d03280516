SELECT
  window.start AS window_start,
  service,
  count(*) AS bookings,
  count_if(status = 'CANCELLED') AS cancelled,
  round(sum(amount), 2) AS amount
FROM bookings
GROUP BY window(event_timestamp, '10 seconds'), service
